"""Fairness between clients: the work and the hits of one client before others are served."""
