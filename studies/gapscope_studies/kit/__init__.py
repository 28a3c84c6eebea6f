"""What every study is made of: settings, networks, statistics, claims and their guard, figures, pages."""
