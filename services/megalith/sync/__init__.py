"""Synchronous training: several processes take each step together, and need no servers.

mpirun -n 4 python my_program.py

from megalith.sync import sync_train

run = sync_train(MyTask(...), model_dir="model")
"""

from megalith.sync.training import sync_train as sync_train
