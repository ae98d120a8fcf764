"""python -m bench model: what a hit on a Redis Cluster costs, measured, and what follows for more.

`runs` and `footprint` measure, `laws` fits a few parameters to it and checks them against runs that
it has not seen, `forecast` predicts, `page` writes docs/scale.md.
"""
