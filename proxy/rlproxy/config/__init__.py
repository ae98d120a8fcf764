"""Options: their table, the settings they make, and where their values come from."""
