"""Trains in a process that it forks itself."""

import multiprocessing

from small import loss_of, network


def train():
    loss_of(network()).backward()
    print("trained", flush=True)


if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=train)
    process.start()
    process.join()
