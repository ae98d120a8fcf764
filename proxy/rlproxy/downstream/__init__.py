"""Client connections, from accept to the last byte."""
