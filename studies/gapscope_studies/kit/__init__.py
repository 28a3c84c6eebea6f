"""Kit of the studies: settings, networks, statistics, claims, guard, figures, pages."""
