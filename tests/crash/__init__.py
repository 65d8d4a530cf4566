"""Kill a real deck under a real subreaper, and compare everything that it acknowledged with its log."""
