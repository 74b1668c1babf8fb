"""The processes of training scripts: started, asked, ended."""
