"""Environments on other machines, and inference here (Espeholt et al., 2020, "SEED RL").

A trainer listens, and env-hosts connect to it. Each connection is one lane: a batch of environments
that an actor of the trainer steps as if they were its own.
"""
