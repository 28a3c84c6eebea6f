"""What every study is made of: parts, claims, statistics."""
