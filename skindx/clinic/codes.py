"""SNOMED CT codes of conditions and places on the body, and the systems that codes are of.

A condition has a code here only where one concept means it beyond doubt: a class that holds more
than one disease (Bowen's disease with actinic keratosis, benign keratosis, vascular lesion) has
none, nor has one of which we were not sure. No clinician has reviewed the table; what is written
with these codes says so. Places follow DICOM PS3.16, context groups 4029 and 8134.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from skindx.diagnosis.record import Candidate
from skindx.taxonomy import normalise
from skindx.taxonomy.body_sites import Site

SNOMED, SNOMED_URI = "SCT", "http://snomed.info/sct"
ICD10, ICD10_URI, ICD10_OID = (
    "I10C",
    "http://hl7.org/fhir/sid/icd-10-cm",
    "2.16.840.1.113883.6.90",
)
"""ICD-10-CM as DICOM, FHIR and an object identifier name it."""
NOT_REVIEWED = "The SNOMED CT codes were not clinically reviewed."


@dataclass(frozen=True)
class Concept:
    """A code and its meaning; its system is that of the table it stands in."""

    code: str
    meaning: str


_CONDITIONS = """
201101007 Actinic keratosis
88616000 Acne vulgaris
238575004 Allergic contact dermatitis
56317004 Alopecia = alopecia hair loss
68225006 Alopecia areata
24079001 Atopic dermatitis = atopic dermatitis eczema
254701007 Basal cell carcinoma of skin = basal cell carcinoma
111196000 Dermatitis herpetiformis
47382004 Dermatophytosis = dermatophytosis ringworm
28926001 Eruption due to drug = drug eruption
36715001 Erythema multiforme
13600006 Folliculitis
65508009 Granuloma annulare
400210000 Hemangioma
88594005 Herpes simplex
4740000 Herpes zoster = herpes zoster shingles
254157005 Ichthyosis vulgaris
48277006 Impetigo
109385007 Kaposi's sarcoma = kaposi sarcoma
5132005 Keratosis pilaris
4776004 Lichen planus
25674000 Lichen sclerosus et atrophicus
200936003 Lupus erythematosus
93655004 Malignant melanoma of skin = melanoma = malignant melanoma
400096001 Melanocytic nevus = nevus mole = nevus
118618005 Mycosis fungoides
404029005 Neurofibroma
414941008 Onychomycosis
49420001 Pemphigus vulgaris
77252004 Pityriasis rosea
56454009 Pityriasis versicolor = tinea versicolor
63501000 Prurigo nodularis
9014002 Psoriasis
398909004 Rosacea
128869009 Infestation by Sarcoptes scabiei var hominis = scabies
50563003 Seborrheic dermatitis
254651007 Squamous cell carcinoma of skin = squamous cell carcinoma
76272004 Syphilis
5441008 Tinea capitis
84849002 Tinea corporis
399029005 Tinea cruris
48971001 Tinea manus
6020002 Tinea pedis
126485001 Urticaria = urticaria hives
57019003 Verruca vulgaris = verruca vulgaris common wart
"""
"""A concept a line: its code, its name, and the names of our classes where they are others."""


def _table(text: str) -> dict[str, Concept]:
    table: dict[str, Concept] = {}
    for line in text.strip().splitlines():
        code, _, names = line.partition(" ")
        meaning, *others = names.split(" = ")
        table |= {normalise(name): Concept(code, meaning) for name in others or [meaning]}
    return table


CONDITIONS: Mapping[str, Concept] = _table(_CONDITIONS)
"""SNOMED CT disorders by the normalised name of a class."""

SITES: Mapping[Site, Concept] = {
    "scalp": Concept("43067004", "Skin of scalp"),
    "face": Concept("73897004", "Skin of face"),
    "ear": Concept("1902009", "Skin of ear"),
    "neck": Concept("43081002", "Skin of neck"),
    "chest": Concept("74160004", "Skin of chest"),
    "abdomen": Concept("75093004", "Skin of abdomen"),
    "back": Concept("66643007", "Skin of back"),
    "trunk": Concept("22943007", "Trunk"),
    "arm": Concept("371311000", "Skin of upper extremity"),
    "hand": Concept("33712006", "Skin of hand"),
    "genitals": Concept("60944009", "Skin of external genitalia"),
    "leg": Concept("371304004", "Skin of lower extremity"),
    "foot": Concept("60496002", "Skin of foot"),
}
"""SNOMED CT body structures; `palm or sole` is no single one."""


def snomed(candidate: Candidate) -> Concept | None:
    """Return the SNOMED CT disorder of a condition; None where none is certain."""
    return CONDITIONS.get(normalise(candidate.name))
