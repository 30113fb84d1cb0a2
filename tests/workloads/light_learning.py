"""light_steps.py with a library that its text does not show, so that there is something to learn."""

import importlib

import stepping
from light_steps import LightTraining

importlib.import_module("numpy")

if __name__ == "__main__":
    stepping.run(LightTraining())
