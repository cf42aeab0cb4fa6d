"""The HTML report: tables and charts about runs."""
