"""Photographs and drawings in several domains, as others published them: data sets that are read from their files.

Each lies in a folder of its own inside the folder that the environment variable AFIELD_DATA names (default: `data` in
the current folder); `sets.py` says which, in what layout, and how many images there must be.
"""

from functools import partial

from afield.data.photographs.load import load_published
from afield.data.photographs.sets import SETS
from afield.data.registry import register_data

for _name, _published in SETS.items():
    register_data(_name)(partial(load_published, _published))
