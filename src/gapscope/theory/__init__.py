"""Closed forms and differential equations in float64; no networks."""

from gapscope.theory.batch_shrinkage import batch_norm_gamma as batch_norm_gamma
from gapscope.theory.batch_shrinkage import batch_norm_zeta as batch_norm_zeta
from gapscope.theory.dynamics import OrderParameters as OrderParameters
from gapscope.theory.dynamics import Trajectory as Trajectory
from gapscope.theory.dynamics import learning_dynamics as learning_dynamics
from gapscope.theory.dynamics import order_parameter_flow as order_parameter_flow
from gapscope.theory.fixed_points import Eigenvalues as Eigenvalues
from gapscope.theory.fixed_points import dynamics_jacobian as dynamics_jacobian
from gapscope.theory.fixed_points import effective_learning_rate as effective_learning_rate
from gapscope.theory.fixed_points import fixed_point as fixed_point
from gapscope.theory.fixed_points import max_learning_rate as max_learning_rate
from gapscope.theory.fixed_points import stability_eigenvalues as stability_eigenvalues
from gapscope.theory.generalization import resolvent_trace as resolvent_trace
from gapscope.theory.generalization import student_generalization as student_generalization
from gapscope.theory.online_students import simulate_learning as simulate_learning
from gapscope.theory.order_parameters import OrderParameterIntegrals as OrderParameterIntegrals
from gapscope.theory.order_parameters import generalization_error as generalization_error
from gapscope.theory.order_parameters import order_parameter_integrals as order_parameter_integrals
from gapscope.theory.statistical_mechanics import Equilibrium as Equilibrium
from gapscope.theory.statistical_mechanics import equilibrium as equilibrium
from gapscope.theory.statistical_mechanics import free_energy as free_energy
from gapscope.theory.student_training import train_students as train_students
from gapscope.theory.teacher_students import StudentWeights as StudentWeights
from gapscope.theory.teacher_students import TeacherTask as TeacherTask
from gapscope.theory.teacher_students import draw_teacher_task as draw_teacher_task
from gapscope.theory.teacher_students import least_squares_students as least_squares_students
