"""Other axes for a network that computes the same."""

from bhc.graph.basis.principal_axes import Basis as Basis
from bhc.graph.basis.principal_axes import PrincipalAxes as PrincipalAxes
