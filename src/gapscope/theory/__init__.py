r"""Theory: closed forms and differential equations in float64, without networks.

Sources: Luo et al. 2019 for students of teachers, Forouzesh, Salehi and Thiran 2021 for output sensitivity. All
functions raise `InvalidInput` for values out of range.

Common parameters:
    student: Activation g of the student, "relu" or "linear"; the teacher's as well, or the teacher is linear.
    method: "weight_norm" or "sgd".
    learning_rate: Learning rate eta, positive.
    gamma: Gain of the student, 0 or larger.
    overlap: Cosine R between student and teacher.
    length: Length L of the trained vector.
    zeta: Gamma decay of the loss full square + $\zeta\gamma^2$, 0 or larger; 0 for SGD.
    alpha: Load P/N, samples per input, 0 or larger.
    noise_variance: Variance S of the label noise.
    temperature: Temperature T of the student.
    task: Training data of several teachers.
    students: Number of independent students.
    layers: All weight layers, output layer last.
    n_outputs: Number of outputs K.
    generator: Source of random numbers; None for the same ones at every call.
"""

from gapscope.theory.dynamics import OrderParameters as OrderParameters
from gapscope.theory.dynamics import Trajectory as Trajectory
from gapscope.theory.dynamics import learning_dynamics as learning_dynamics
from gapscope.theory.dynamics import order_parameter_flow as order_parameter_flow
from gapscope.theory.dynamics import resolvent_trace as resolvent_trace
from gapscope.theory.dynamics import student_generalization as student_generalization
from gapscope.theory.fixed_points import Eigenvalues as Eigenvalues
from gapscope.theory.fixed_points import batch_norm_gamma as batch_norm_gamma
from gapscope.theory.fixed_points import batch_norm_zeta as batch_norm_zeta
from gapscope.theory.fixed_points import dynamics_jacobian as dynamics_jacobian
from gapscope.theory.fixed_points import effective_learning_rate as effective_learning_rate
from gapscope.theory.fixed_points import fixed_point as fixed_point
from gapscope.theory.fixed_points import max_learning_rate as max_learning_rate
from gapscope.theory.fixed_points import stability_eigenvalues as stability_eigenvalues
from gapscope.theory.sensitivity import WeightLayer as WeightLayer
from gapscope.theory.sensitivity import bias_contribution as bias_contribution
from gapscope.theory.sensitivity import expected_sensitivity as expected_sensitivity
from gapscope.theory.sensitivity import finite_noise_sensitivity as finite_noise_sensitivity
from gapscope.theory.sensitivity import fully_connected_layers as fully_connected_layers
from gapscope.theory.sensitivity import predicted_loss as predicted_loss
from gapscope.theory.sensitivity import predicted_variance as predicted_variance
from gapscope.theory.statistical_mechanics import Equilibrium as Equilibrium
from gapscope.theory.statistical_mechanics import OrderParameterIntegrals as OrderParameterIntegrals
from gapscope.theory.statistical_mechanics import equilibrium as equilibrium
from gapscope.theory.statistical_mechanics import free_energy as free_energy
from gapscope.theory.statistical_mechanics import generalization_error as generalization_error
from gapscope.theory.statistical_mechanics import (
    order_parameter_integrals as order_parameter_integrals,
)
from gapscope.theory.student_training import simulate_learning as simulate_learning
from gapscope.theory.student_training import train_students as train_students
from gapscope.theory.teacher_students import StudentWeights as StudentWeights
from gapscope.theory.teacher_students import TeacherTask as TeacherTask
from gapscope.theory.teacher_students import draw_teacher_task as draw_teacher_task
from gapscope.theory.teacher_students import least_squares_students as least_squares_students
