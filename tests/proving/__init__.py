"""`make prove`: each protection on the list is taken away once, and its tests must then fail."""
