"""From a sweep file to finished runs."""
