"""Schedules of pipelines: the tables by name, what they hold at once, and simulated steps.

    schedule = reprise.schedules.one_forward_one_backward(workers=4, micro_batches=8)
    print(reprise.schedules.simulate(schedule, checkpoint_stop=7).text())
"""

from ._reprise import schedules as _own

activation_lives = _own.activation_lives
balance = _own.balance
balance_by_cost = _own.balance_by_cost
by_name = _own.by_name
dual_pipe_v = _own.dual_pipe_v
gpipe = _own.gpipe
interleaved_1f1b = _own.interleaved_1f1b
interleaved_zero_bubble = _own.interleaved_zero_bubble
looped_breadth_first = _own.looped_breadth_first
names = _own.names
one_forward_one_backward = _own.one_forward_one_backward
simulate = _own.simulate
zero_bubble_v = _own.zero_bubble_v
