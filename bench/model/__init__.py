"""python -m bench model: what a hit on a Redis Cluster costs, measured, and what follows for more.

`cli` measures `runs` and `footprint`s, `laws` fits a few parameters to them and checks these by
runs that it has not seen, `forecast` predicts, `page` writes docs/scale.md.
"""
