"""The privacy loss of training and its epsilons, without torch:

pairs          the pair of distributions that dominates one step
distributions  distributions of privacy losses on a grid, and their composition
steps          the epsilons of a number of steps under every adjacency
"""

from safexplain._privacy_loss.distributions import VACUOUS as VACUOUS
from safexplain._privacy_loss.steps import ERROR as ERROR
from safexplain._privacy_loss.steps import MAX_KINDS as MAX_KINDS
from safexplain._privacy_loss.steps import MAX_RECORDS as MAX_RECORDS
from safexplain._privacy_loss.steps import PROTECTS as PROTECTS
from safexplain._privacy_loss.steps import ROUNDING as ROUNDING
from safexplain._privacy_loss.steps import SMALLEST_DELTA as SMALLEST_DELTA
from safexplain._privacy_loss.steps import Adjacency as Adjacency
from safexplain._privacy_loss.steps import Epsilons as Epsilons
from safexplain._privacy_loss.steps import Sampling as Sampling
from safexplain._privacy_loss.steps import Steps as Steps
from safexplain._privacy_loss.steps import check_adjacency as check_adjacency
from safexplain._privacy_loss.steps import check_delta as check_delta
from safexplain._privacy_loss.steps import composed as composed
from safexplain._privacy_loss.steps import epsilon_of as epsilon_of
from safexplain._privacy_loss.steps import epsilons as epsilons
from safexplain._privacy_loss.steps import grid_widths as grid_widths
from safexplain._privacy_loss.steps import group_privacy_epsilon as group_privacy_epsilon
from safexplain._privacy_loss.steps import one_step as one_step
from safexplain._privacy_loss.steps import privacy_loss as privacy_loss
from safexplain._privacy_loss.steps import renyi as renyi
from safexplain._privacy_loss.steps import typical_loss as typical_loss
