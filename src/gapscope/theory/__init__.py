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

from gapscope.theory.dynamics import (
    OrderParameters,
    Trajectory,
    learning_dynamics,
    order_parameter_flow,
    resolvent_trace,
    student_generalization,
)
from gapscope.theory.fixed_points import (
    Eigenvalues,
    batch_norm_gamma,
    batch_norm_zeta,
    dynamics_jacobian,
    effective_learning_rate,
    fixed_point,
    max_learning_rate,
    stability_eigenvalues,
)
from gapscope.theory.sensitivity import (
    WeightLayer,
    bias_contribution,
    expected_sensitivity,
    finite_noise_sensitivity,
    fully_connected_layers,
    predicted_loss,
    predicted_variance,
)
from gapscope.theory.statistical_mechanics import (
    Equilibrium,
    OrderParameterIntegrals,
    equilibrium,
    free_energy,
    generalization_error,
    order_parameter_integrals,
)
from gapscope.theory.student_training import simulate_learning, train_students
from gapscope.theory.teacher_students import (
    StudentWeights,
    TeacherTask,
    draw_teacher_task,
    least_squares_students,
)

__all__ = [
    "Eigenvalues",
    "Equilibrium",
    "OrderParameterIntegrals",
    "OrderParameters",
    "StudentWeights",
    "TeacherTask",
    "Trajectory",
    "WeightLayer",
    "batch_norm_gamma",
    "batch_norm_zeta",
    "bias_contribution",
    "draw_teacher_task",
    "dynamics_jacobian",
    "effective_learning_rate",
    "equilibrium",
    "expected_sensitivity",
    "finite_noise_sensitivity",
    "fixed_point",
    "free_energy",
    "fully_connected_layers",
    "generalization_error",
    "learning_dynamics",
    "least_squares_students",
    "max_learning_rate",
    "order_parameter_flow",
    "order_parameter_integrals",
    "predicted_loss",
    "predicted_variance",
    "resolvent_trace",
    "simulate_learning",
    "stability_eigenvalues",
    "student_generalization",
    "train_students",
]
