"""The version, where the build can read it without importing anything else."""

VERSION = "0.1.0"
