"""`python -m skindx.data.copies.learn codebook|acceptance`: write what the package ships."""

import sys

from skindx.data.copies import describe
from skindx.data.copies.learn import codebook as learn_codebook

if sys.argv[1:] == ["codebook"]:
    describe.write_codebook(describe.CODEBOOK_FILE, learn_codebook.learn())
elif sys.argv[1:] == ["acceptance"]:
    from skindx.data.copies.learn import acceptance

    acceptance.write()
else:
    sys.exit(__doc__)
