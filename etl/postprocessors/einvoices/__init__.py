"""Post-processing of e-invoices: the mode `einvoice` of rules, and the comparison with the pages."""
