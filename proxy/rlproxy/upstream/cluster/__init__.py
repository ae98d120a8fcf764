"""Redis Cluster as one Redis: discovery, routing by key, redirects, lanes to each node."""
