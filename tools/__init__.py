"""Programs that people run by hand; no test and no job needs them."""
