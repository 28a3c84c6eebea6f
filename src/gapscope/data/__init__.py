"""Readers, corruptions and downloads of the data sets.

Common parameters:
    root: Folder of the data sets; None for GAPSCOPE_DATA or the user's cache, see `data_root`.
    name: Name of a data set, one of `dataset_names()`.
    path: File to read, plain or gzipped.
    samples, labels, targets, images: Data to corrupt; functions return new tensors.
    n: Number of samples.
    n_classes: Number of classes.
    generator: Source of random numbers; None for the same ones at every call.
    seed, split_seed: Seed of the samples, or of their split into training and test.
    base_url: Another server with the same files.
"""

from gapscope.data.catalogue import check_dataset_options as check_dataset_options
from gapscope.data.catalogue import dataset_names as dataset_names
from gapscope.data.catalogue import fetch as fetch
from gapscope.data.catalogue import find_dataset as find_dataset
from gapscope.data.catalogue import load_dataset as load_dataset
from gapscope.data.corruptions import add_target_noise as add_target_noise
from gapscope.data.corruptions import balanced_subset as balanced_subset
from gapscope.data.corruptions import inject_label_noise as inject_label_noise
from gapscope.data.corruptions import motion_blur as motion_blur
from gapscope.data.corruptions import subset as subset
from gapscope.data.image_folder import ImageFolder as ImageFolder
from gapscope.data.location import data_root as data_root
from gapscope.data.prepare import prepare as prepare
from gapscope.data.prepare import unpack_mask as unpack_mask
from gapscope.data.problem import Problem as Problem
