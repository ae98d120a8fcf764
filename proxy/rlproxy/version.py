"""The version, in a module that the build reads without importing anything else."""

VERSION = "0.1.0"
