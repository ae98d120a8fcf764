"""`rlproxy top`: a client of a running proxy that draws on a terminal."""
