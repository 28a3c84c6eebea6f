"""Readers, corruptions and downloads of the data sets."""

from gapscope.data.corruptions import add_target_noise as add_target_noise
from gapscope.data.corruptions import balanced_subset as balanced_subset
from gapscope.data.corruptions import inject_label_noise as inject_label_noise
from gapscope.data.corruptions import subset as subset
from gapscope.data.location import data_root as data_root
from gapscope.data.motion_blur import motion_blur as motion_blur
from gapscope.data.prepare import prepare as prepare
from gapscope.data.prepare import unpack_mask as unpack_mask
from gapscope.data.problem import Problem as Problem
from gapscope.data.sources import check_dataset_options as check_dataset_options
from gapscope.data.sources import dataset_names as dataset_names
from gapscope.data.sources import fetch as fetch
from gapscope.data.sources import find_dataset as find_dataset
from gapscope.data.sources import load_dataset as load_dataset
