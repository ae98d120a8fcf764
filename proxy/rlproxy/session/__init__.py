"""One client's state: what each command needs, its route, the order of replies. No I/O."""
