"""The benchmark: `python -m bench` runs Redis directly, the proxy and its peers side by side.

    rows        what is measured: the table of names, parties, commands and sizes
    options     the command line, which becomes a Plan
    __main__    runs the rows, each by the module of its kind:
                rate, values, tasks, latency, fresh, costs
    parts       the table of parties: the server and the programs in front of it; each row starts
                those that it needs: processes, client
                three of them are floors, which do less than a proxy: splice, lane, stub
    load        the closed loops, with the hits of calls; latency has an open loop
    figures     the samples of a row by party, their medians, ratios and spread; cpu: CPU times
    result      all of it as JSON, with the machine
    page        docs/benchmarks.md, of a result: tables, bounds, plots
    model       docs/scale.md: what hits on a cluster cost

For docs/algorithms.md, `python -m bench.pictures` draws what each algorithm decides on the
same `traffic`, and `python -m bench.costs` measures what each costs.
"""
