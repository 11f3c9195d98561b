"""Solutions that take no descent: functions of arrays that know no networks, devices or files."""

from afield.closed_form.geodesic_flow import geodesic_flow_kernel, principal_subspace
from afield.closed_form.meda import Solution, a_distance, solve_meda

__all__ = ["Solution", "a_distance", "geodesic_flow_kernel", "principal_subspace", "solve_meda"]
