"""Load clients, one per library: `NAME PORT SECONDS CONNECTIONS`; what they got comes on stdout.

Each hits the twenty keys `exact:0` ... `exact:19` (max 2 + 3i in 40 + 25i ms) with every connection
in turn, singly, pipelined with PINGs between, and inside MULTI, and prints one line for each kind
of reply: `key limited limit remaining count` (retry_after must be -1 where limited is 0, and above
0 where it is 1). Anything else is printed as a line that begins with `ERROR`.
"""
