"""What a site needs beside the package: configurations of its servers, rules, dashboards."""
