"""Pickles what __main__ defines and runs it in processes of every start method, and in those of a DataLoader."""

import multiprocessing
import os
import pickle

import torch
from report import report
from torch.utils.data import DataLoader, Dataset


class Point:
    def __init__(self, x):
        self.x = x


def double(point):
    return Point(point.x * 2)


class Squares(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(float(index * index))


def pool_of(method):
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.apply(double, (Point(21),)).x


def main():
    assert pickle.loads(pickle.dumps(Point(3))).x == 3
    assert pickle.loads(pickle.dumps(double)) is double
    report("pools", results={method: pool_of(method) for method in ("fork", "spawn", "forkserver")})
    for method in ("fork", "spawn"):
        loader = DataLoader(Squares(), batch_size=4, num_workers=1, multiprocessing_context=method)
        report("loader", method=method, total=sum(batch.sum().item() for batch in loader))
    report("main", pid_of_name=os.getpid())


if __name__ == "__main__":
    main()
