"""Language models behind one protocol: endpoints, models on this machine, scripted ones, and runs that lose nothing.

A stage makes `Request`s and hands them to a `Client` (`rolellm.llm.client`); each comes back as an `Answer` or a
`Failure`. Every raw reply is in the run's journal before anything reads it.
"""
