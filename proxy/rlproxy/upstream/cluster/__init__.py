"""Redis Cluster as one Redis.

    session ──> connection ──> dispatcher ──┬── one request, or parts ──> links ──> nodes
                                            │                              ^          │
                                  answered  │                  redirects ──┘ <────────┤ MOVED, ASK
                                    here    v                                         │
    session <── out <── exchange.queue, in request order <── gather, of parts <───────┘

A command waits in the connection while the dispatcher's send() returns False: until all that was
sent is answered, or that of its slot (Redirects.drained(), routes.ALONE).

A client's command on its private connection meets, in order:

    target            the connector: makes the parts below for each client
    connection        the private connection, as the session sees it
    command_splitter  bytes as whole commands in words
    dispatcher        which node gets a command, or that the proxy answers it
      routes            the tables for that, and the places of keys
      connection_setup  AUTH, HELLO, RESET, CLIENT SETNAME and the like, on all links
      transaction       WATCH, MULTI, EXEC
      subscriptions     SUBSCRIBE and its kin, MONITOR, keyspace events
      client_ids        CLIENT ID, LIST, KILL, UNBLOCK
      scan              SCAN
      face              CLUSTER, and what else a client sees of the cluster
    exchange          the order of the replies, and how many bytes of them may wait
      request           one command, or the part of it for one node
      gather            one reply from those of several nodes
      info_reply        the same for INFO
      redirects         MOVED, ASK, TRYAGAIN: what is sent again, and what waits for it
    links, link       the connections to the nodes: opened when needed, closed when idle

A hit, and an ordinary command with --share:

    lanes             the lane of an identity, for hits: what is sent again, and what waits for it;
                      and for ordinary commands, none of which waits
    node, node_lane   one master: its circuit, control connection and lanes
    cluster_circuit   whether sessions take Redis for down

What all of them follow:

    cluster           the nodes, the home of clients, and the present map
    discovery         the view that one node has of the cluster; which of several is used
    slot_map          the owner of each slot
"""
