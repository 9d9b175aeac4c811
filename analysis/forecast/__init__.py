"""Forecasts of a run from its scaling ladder and from its own past, scored honestly, and preregistered.

`ladder` the curves a forecast is made from; `across` fits across rungs at the same fraction of the run; `curve`
the run's own curve continued under its learning rate; `methods` all of them by name; `document` what
`maquette forecast` prints; `scoring` leave-future-out; `preregistration` a forecast that cannot be changed
unnoticed; `largest` the own ladder's largest rung from the smaller ones.
"""
