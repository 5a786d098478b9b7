"""Exit statuses of ``stn``: 0 where all is done, and these."""

BROKEN = 1  # it cannot be done: a record that is broken, data that are not here
MISUSED = 2  # what is asked for is not there, or cannot be; argparse ends with it too
UNFINISHED = 3  # time was up, or another process is at it: the same command goes on
FAILED = 4  # all is done, but a run failed, or has a checkpoint that does not fit
INTERRUPTED = 130  # by Ctrl-C or `kill`: the same command goes on
