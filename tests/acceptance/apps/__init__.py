"""Apps that the acceptance tests start under real servers."""
