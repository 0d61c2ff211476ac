"""Runs gpu_bench with the libraries that came along: benched.py PROGRAM [ARGUMENT...]."""
import os
import sys

from cluster import environment

os.execvpe(sys.argv[1], sys.argv[1:], environment())
