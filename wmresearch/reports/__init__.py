"""What people see of a sweep: its table. Reads run directories only; imports scipy, so import it where it is used."""

from wmresearch.reports.table import FORMATS, ReportError, Row, Table, build_table, render

__all__ = ["FORMATS", "ReportError", "Row", "Table", "build_table", "render"]
