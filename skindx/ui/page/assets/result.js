// Whoever does not see the page is led to the answer as soon as it is there.
watch("value", () => element.querySelector(".sx-result, .sx-problem")?.focus({ preventScroll: true }));
