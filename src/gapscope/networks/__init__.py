"""Networks: LeNet-5, AlexNet, VGG, ResNet, MobileNet, fully connected and plain ones, and models of other packages."""

from gapscope.networks.adapters import from_timm as from_timm
from gapscope.networks.adapters import from_torchvision as from_torchvision
from gapscope.networks.adapters import from_transformers as from_transformers
from gapscope.networks.factory import build_network as build_network
from gapscope.networks.factory import check_network_options as check_network_options
from gapscope.networks.factory import network_names as network_names
from gapscope.networks.initialization import initialize as initialize
