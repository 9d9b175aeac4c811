"""Mixing laws: the loss on one evaluation set as a function of the shares of the training domains.

`table` the runs a law is fitted to; `law` what a law is, one module of `laws` each; `score` how well a law orders
and predicts other runs; `proposal` the best mixture under constraints.
"""
