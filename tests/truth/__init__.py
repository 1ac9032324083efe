"""Generated runs with a known cause, and a judge of what rollscope says about them.

This package shares no code and no assumption with the program. Read in this order:
- `simulate`: what happens in a training run, moment by moment
- `causes`: what can make one step slow, and what a right answer names
- `emit`: how real systems report such a run, as OTLP
- `judge`: sends runs to the real program and compares its answers with the truth

Seeds 0 to 999 are for setting thresholds. Seeds from 10000 are for judging. Do not look at judged runs while you tune.
"""
