"""`python -m skindx.data.copies.learn codebook|acceptance`: write what the package ships."""

import sys

from skindx.data.copies import codebook
from skindx.data.copies.learn import codebook as learn_codebook

if sys.argv[1:] == ["codebook"]:
    codebook.write_codebook(codebook.FILE, learn_codebook.learn())
elif sys.argv[1:] == ["acceptance"]:
    from skindx.data.copies.learn import acceptance

    acceptance.write()
else:
    sys.exit(__doc__)
